"""JSON as it is written today and as fastjson writes it, and its parts read within bounds."""
