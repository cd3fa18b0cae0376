"""Programs with any backend: calls are observed, recorded, and made to fail on request."""
