"""Headers of HTTP/2 (RFC 7541): fields, their Huffman code, and the decoder and encoder of header blocks."""
