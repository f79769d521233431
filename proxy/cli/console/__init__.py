"""What every command needs: options, output, failures, and the admin port of a gateway."""
