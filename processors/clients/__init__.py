"""Clients of this gateway: their registration, and the commands and questions that they are sent."""
