// Package bpf holds the compiled BPF programs and the Go types of the values that they share with user space.
//
// The C sources are in this directory. The generated files are committed, so that building needs no BPF compiler.
package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf -type addr -type counted_addr -type mac_pair -type peer_count -type hop_counter -type hop_key -type peer -type peer_share -type quota -type pair_key -type neigh_key -type direction -type side -type limit -type link_flags -type addr_kind -type lost -type far TC tc.bpf.c -- -mcpu=v2 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Iinclude -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf -no-global-types -type addr -type quota -type drop_key -type cilium_drop -type drop_event -type hook_reason Drop drop.bpf.c -- -mcpu=v2 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Iinclude -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package traffic -no-global-types -output-dir ../probe/traffic -output-suffix _test empty empty.bpf.c -- -mcpu=v2 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Iinclude -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf Stub stub.bpf.c -- -mcpu=v2 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Iinclude -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf -type process Process process.bpf.c -- -mcpu=v2 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Iinclude -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go run ./trim tc_bpfel.go drop_bpfel.go stub_bpfel.go process_bpfel.go
