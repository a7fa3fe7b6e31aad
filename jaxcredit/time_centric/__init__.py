"""Credit by closeness in time: returns, advantages, off-policy corrections and eligibility traces."""
