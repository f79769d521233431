"""Headers of HTTP/2 (RFC 7541): fields, their Huffman code, and blocks of them read and written."""
