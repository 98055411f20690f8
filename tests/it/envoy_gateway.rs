//! In the place that Envoy Gateway has for a rate limit service.
