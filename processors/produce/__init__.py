"""What is decided before a message is stored: limits, route, batch, and whom a transaction check goes to."""
