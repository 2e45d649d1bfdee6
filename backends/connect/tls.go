package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"

	"github.com/outmill/outmill/internal/settings"
)

// tlsConfig is encryption as parameters say it.
type tlsConfig struct {
	on, insecure              bool
	ca, cert, key, serverName string
}

func tlsParams[C any](at func(*C) *tlsConfig) []settings.Setting[C] {
	return []settings.Setting[C]{
		settings.Bool("tls", "TLS", "false", "Encrypt connections.", func(c *C) *bool { return &at(c).on }),
		settings.Text("tls_ca", "", "the system's", "File of the certificates to trust (PEM).", func(c *C) *string { return &at(c).ca }),
		settings.Text("tls_cert", "", "none", "File of the client's certificate (PEM).", func(c *C) *string { return &at(c).cert }),
		settings.Text("tls_key", "", "none", "File of the client's key (PEM).", func(c *C) *string { return &at(c).key }),
		settings.Text("tls_server_name", "", "the host's", "The name that the server's certificate must hold.", func(c *C) *string { return &at(c).serverName }),
		settings.Bool("tls_insecure", "", "false", "Take any certificate. For tests: it protects against nobody who can reach the connection.",
			func(c *C) *bool { return &at(c).insecure }),
	}
}

// build reads the files. It returns nil where encryption is off.
func (t tlsConfig) build() (*tls.Config, error) {
	if !t.on {
		if t != (tlsConfig{}) {
			return nil, errors.New("tls is off, but other tls parameters are set: add tls=true")
		}
		return nil, nil
	}
	var faults []error
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.serverName, InsecureSkipVerify: t.insecure}
	if t.ca != "" {
		out.RootCAs = x509.NewCertPool()
		pem, err := os.ReadFile(t.ca)
		switch {
		case err != nil:
			faults = append(faults, errors.New("tls_ca names a file that cannot be read"))
		case !out.RootCAs.AppendCertsFromPEM(pem):
			faults = append(faults, errors.New("tls_ca names a file without a certificate in PEM"))
		}
	}
	switch {
	case (t.cert == "") != (t.key == ""):
		faults = append(faults, errors.New("tls_cert and tls_key belong together: set both or none"))
	case t.cert != "":
		pair, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			faults = append(faults, errors.New("tls_cert and tls_key name files that cannot be read or do not belong together"))
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, errors.Join(faults...)
}
