package traffic

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// presentCPUs is the highest id of a present CPU, plus one. Possible CPUs can be many more: an Azure D2s_v3 has 2
// CPUs present, and 128 possible. Packets on a CPU that is plugged in later are counted as lost.
func presentCPUs() (int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/present")
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	return parseCPUs(string(b))
}

// parseCPUs returns the last CPU of a kernel's list of CPUs, plus one. Lists are
// in ascending order: 0-3,6 (Documentation/admin-guide/cputopology.rst).
func parseCPUs(list string) (int, error) {
	s := strings.TrimSpace(list)
	s = s[strings.LastIndexAny(s, ",-")+1:]
	last, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("count CPUs: parse list %q: %w", list, err)
	}
	return int(last) + 1, nil
}
