"""Declarations of topics and groups in a file: read, validated, and exported."""
