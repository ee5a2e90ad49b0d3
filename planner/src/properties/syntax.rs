//! Syntax of Java properties.
