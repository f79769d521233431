"""Messages that clients of this gateway hold: renewed while the client is there, released when it is gone."""
