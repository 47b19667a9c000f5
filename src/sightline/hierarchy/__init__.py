"""What levels of shared labels are worth."""
