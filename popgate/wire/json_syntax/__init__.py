"""Standard JSON, fastjson's dialect, and bounded access to parts of a document."""
