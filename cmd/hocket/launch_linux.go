package main

import (
	"os/exec"
	"syscall"
)

// dieWithParent has c end when the thread that starts it does.
func dieWithParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
