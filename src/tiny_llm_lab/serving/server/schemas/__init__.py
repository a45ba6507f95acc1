"""What requests may hold, a file for each route or what several have in common."""
