"""All states that a small engine reaches: which are stuck, which go round in a circle, and who waits for whom. Needs `networkx`."""
