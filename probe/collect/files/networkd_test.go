package files

import (
	"reflect"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

func TestNetworkd(t *testing.T) {
	const state, etc, lib = "run/systemd/netif/state", "etc/systemd/networkd.conf", "usr/lib/systemd/networkd.conf"
	all, none := &model.Networkd{RemovesRoutes: true, RemovesRules: true}, &model.Networkd{}
	routes := &model.Networkd{RemovesRoutes: true}
	for name, tt := range map[string]struct {
		files map[string]string
		want  *model.Networkd
	}{
		"not there":                  {map[string]string{etc: "[Network]\n"}, nil},
		"as it comes":                {map[string]string{state: "", lib: "[Network]\n#ManageForeignRoutes=no\n"}, all},
		"without a file":             {map[string]string{state: ""}, all},
		"both off":                   {map[string]string{state: "", etc: "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules = False\n"}, none},
		"of another section":         {map[string]string{state: "", etc: "[DHCPv4]\nManageForeignRoutes=no\n"}, all},
		"the rules alone":            {map[string]string{state: "", etc: "[Network]\nManageForeignRoutingPolicyRules=0\n"}, routes},
		"on again by a later file":   {map[string]string{state: "", etc: "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n", etc + ".d/50-x.conf": "[Network]\nManageForeignRoutes=yes\n"}, routes},
		"a file that another hides":  {map[string]string{state: "", lib + ".d/10-a.conf": "[Network]\nManageForeignRoutes=no\n", etc + ".d/10-a.conf": ""}, all},
		"the distribution's drop-in": {map[string]string{state: "", lib + ".d/10-a.conf": "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n", etc: "[Network]\nManageForeignRoutes=yes\n"}, none},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Read(root(t, tt.files))
			if err != nil || !reflect.DeepEqual(got.Networkd, tt.want) {
				t.Errorf("got %+v, %v; want %+v", got.Networkd, err, tt.want)
			}
		})
	}
}
