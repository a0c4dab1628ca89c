"""Does it fit, and how long does it take: predicted from shapes, then proved by one real step."""
