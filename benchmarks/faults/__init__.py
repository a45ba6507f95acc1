"""What a running server does when clients, signals and disks misbehave: a table, to be read."""
