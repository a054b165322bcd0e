"""Know what Go promises: names, types, layout, argument places and runtime structs."""
