"""The vendor's context binaries, read without the vendor's library."""
