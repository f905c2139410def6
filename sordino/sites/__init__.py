"""Sites on separate machines: server, site and key holder."""
