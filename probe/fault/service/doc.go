// Package service finds services whose endpoints are gone.
package service
