package forwarder

// Effective returns the configuration as a forwarder would use it: with the
// defaults in place of what is not set. It says nothing about faults.
func (c Config) Effective() Config { return c.withDefaults() }
