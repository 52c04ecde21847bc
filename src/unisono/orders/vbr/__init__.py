"""The VBR order (paper 000 §5 to §7): slots, failures, joins, slot-length changes."""
