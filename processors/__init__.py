"""The meaning of a request: checked, routed, sent to a broker and observed. Doors above, brokers below."""
