"""Looking ahead over the plan: what is in flight, and within which bounds."""
