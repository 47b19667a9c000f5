"""One table describes any image set; images to tensors; which of them share a batch."""
