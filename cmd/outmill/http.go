package main

import (
	"fmt"
	"net"
	"strconv"
)

// checkHTTP wants an address that can be listened on.
func (c config) checkHTTP() error {
	if c.HTTP == httpOff {
		return nil
	}
	_, port, err := net.SplitHostPort(c.HTTP)
	if err != nil {
		return fmt.Errorf("http is %q: write host:port, :port for all addresses, or off", c.HTTP)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("http has the port %q: a number from 0 to 65535 is needed", port)
	}
	return nil
}
