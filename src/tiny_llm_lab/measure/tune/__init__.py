"""The flags of a server for a machine, its traffic and its SLOs: simulated, then checked on real servers."""
