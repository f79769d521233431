"""Wire formats: byte layouts and sans-IO machines. Imports no other part of popgate than `errors`."""
