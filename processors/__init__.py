"""What a request means: checked, routed, asked of a broker and observed. Doors above, brokers below."""
