"""What items are labelled with: trees, codes, and how much items that share labels are worth."""
