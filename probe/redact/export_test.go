package redact

// Knows reports whether a field of the model has a treatment.
func Knows(field string) bool { return fields[field] != nil }
