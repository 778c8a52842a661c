"""What finished runs say: comparisons between them, and reports with figures. Reads run directories; starts nothing."""
