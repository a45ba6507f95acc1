"""What commands share: flags from dataclasses, tables, wrapped text, messages on stderr."""
