"""Which stack is worth trying: every compatible one simulated, and no gain sold that lies inside the prediction's error."""
