"""How good is a result, and how sure are we: statistics over seeds, and the pictures that show them."""
