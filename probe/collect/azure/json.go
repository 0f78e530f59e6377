package azure

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// object holds fields by their names in lower case: versions of az differ in the case of some.
type object map[string]any

// fold has objects in the place of JSON's maps.
func fold(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = fold(v[i])
		}
	case map[string]any:
		o := object{}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			o[strings.ToLower(name)] = fold(v[name])
		}
		return o
	}
	return v
}

// found says what a value is: a text itself, the others' types in JSON's words.
func found(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string:
		return fmt.Sprintf("%q", v)
	case []any:
		return "a list"
	case object:
		return "an object"
	}
	return "a number"
}
