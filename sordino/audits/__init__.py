"""Audits: proved lower bounds on privacy loss, by worst-case neighbours and canaries. Copies with too little noise
(broken twins) test the audit itself."""
