"""Pictures and pages that open offline."""
