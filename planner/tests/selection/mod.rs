//! Which sites, replicas and storage places a plan uses, and which catalogs it can read.

mod sites;
