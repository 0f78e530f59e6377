// Package bpf holds the programs that run in the kernel, compiled, with the
// Go types of the values they share.
//
// The C sources are beside it. What is generated from them is committed, so
// that building needs no compiler for BPF.
package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf -type addr -type subject -type mac_pair -type peer_count -type leg -type owner -type peer -type pair_key -type neigh_key -type direction -type side -type limit -type pair_scope -type subject_kind -type lost TC tc.bpf.c -- -mcpu=v2 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Iinclude -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf -type addr -type drop_key -type drop_event Drop drop.bpf.c -- -mcpu=v2 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Iinclude -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -go-package bpf Empty empty.bpf.c -- -mcpu=v2 -O2 -Wall -Wextra -Werror -Wno-unused-parameter -Iinclude -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu
