//go:build !windows

package input

import "syscall"

const noFollow, directory = syscall.O_NOFOLLOW, syscall.O_DIRECTORY
