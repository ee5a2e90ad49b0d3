//! Layout in layers: every box is below all boxes that lead to it. Edges that pass layers go through places
//! that are kept free for them. Within a layer, boxes stand near the middle of their neighbours.

use crate::graph::{Graph, by_depth};

/// Height of a box.
pub(super) const BOX_HEIGHT: f64 = 34.0;
/// From the top of one layer to that of the next.
const LAYER: f64 = 78.0;
/// Between boxes of a layer.
const GAP: f64 = 14.0;
/// Room for an edge that passes a layer.
const PASSAGE: f64 = 8.0;
/// Margin of the picture.
const MARGIN: f64 = 12.0;
/// Characters of a label that are shown.
const SHOWN: usize = 34;
/// How often the order within layers is improved.
const SWEEPS: usize = 12;

/// Where a box is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spot {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
}

/// The finished layout.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) boxes: Vec<Spot>,
    /// SVG path of each edge.
    pub(super) paths: Vec<String>,
}

/// What of a line of a label is shown.
pub(super) fn shown(line: &str) -> &str {
    match line.char_indices().nth(SHOWN) {
        Some((at, _)) => &line[..at],
        None => line,
    }
}

/// Places boxes with the given labels.
pub(super) fn place(labels: &[&str], edges: &[(u32, u32, u32)]) -> Layout {
    let pairs: Vec<(u32, u32)> = edges.iter().map(|&(from, to, _)| (from, to)).collect();
    let graph = Graph::new(labels.len(), &pairs);
    let order = graph.topological().unwrap_or_default();
    let mut layer_of = graph.depths(&order);
    // A box with nothing above it stands right above what needs it, not at the top.
    for &node in order.iter().rev() {
        if graph.parents(node).is_empty()
            && let Some(first) = graph.children(node).iter().map(|&c| layer_of[c as usize]).min()
        {
            layer_of[node as usize] = first.saturating_sub(1);
        }
    }
    // Boxes first, then the passages of edges over several layers.
    let mut widths: Vec<f64> = labels.iter().map(|label| width_of(label)).collect();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    let mut routes: Vec<Vec<u32>> = Vec::new();
    for &(from, to) in &pairs {
        let mut route = vec![from];
        for layer in layer_of[from as usize] + 1..layer_of[to as usize] {
            let passage = widths.len() as u32;
            widths.push(PASSAGE);
            layer_of.push(layer);
            route.push(passage);
        }
        route.push(to);
        parts.extend(route.windows(2).map(|pair| (pair[0], pair[1])));
        routes.push(route);
    }
    let full = Graph::new(widths.len(), &parts);
    let mut layers = by_depth(&layer_of);
    let mut position = vec![0.0; widths.len()];
    for layer in &layers {
        number(layer, &mut position);
    }
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        let count = layers.len();
        for k in 0..count {
            let k = if down { k } else { count - 1 - k };
            let layer = &mut layers[k];
            let middle = |n: u32| {
                let near = if down { full.parents(n) } else { full.children(n) };
                match near.len() {
                    0 => position[n as usize],
                    len => near.iter().map(|&m| position[m as usize]).sum::<f64>() / len as f64,
                }
            };
            let mut keyed: Vec<(f64, u32)> = layer.iter().map(|&n| (middle(n), n)).collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            *layer = keyed.into_iter().map(|(_, n)| n).collect();
            number(layer, &mut position);
        }
    }
    let mut layout = coordinates(&full, &layers, &layer_of, &widths);
    layout.paths = routes.iter().map(|route| path(route, &layout.boxes)).collect();
    layout.boxes.truncate(labels.len());
    layout
}

/// Positions within a layer, from 0 to 1, so that layers of different length are comparable.
fn number(layer: &[u32], position: &mut [f64]) {
    let count = layer.len() as f64;
    for (k, &n) in layer.iter().enumerate() {
        position[n as usize] = (k as f64 + 0.5) / count;
    }
}

fn width_of(label: &str) -> f64 {
    let longest = label.lines().map(|line| shown(line).chars().count()).max();
    (longest.unwrap_or_default() as f64 * 6.4 + 16.0).max(40.0)
}

/// Boxes are moved towards the middle of their neighbours as far as the order allows.
fn coordinates(graph: &Graph, layers: &[Vec<u32>], layer_of: &[u32], widths: &[f64]) -> Layout {
    let mut centre = vec![0.0; widths.len()];
    let space = |a: u32, b: u32| (widths[a as usize] + widths[b as usize]) / 2.0 + GAP;
    for layer in layers {
        let mut x = 0.0;
        for (k, &n) in layer.iter().enumerate() {
            if k > 0 {
                x += space(layer[k - 1], n);
            }
            centre[n as usize] = x;
        }
        for &n in layer {
            centre[n as usize] -= x / 2.0;
        }
    }
    for sweep in 0..2 * SWEEPS {
        let down = sweep % 2 == 0;
        for k in 0..layers.len() {
            let layer = &layers[if down { k } else { layers.len() - 1 - k }];
            let wished: Vec<f64> = layer
                .iter()
                .map(|&n| {
                    let near = if down { graph.parents(n) } else { graph.children(n) };
                    match near.len() {
                        0 => centre[n as usize],
                        len => near.iter().map(|&m| centre[m as usize]).sum::<f64>() / len as f64,
                    }
                })
                .collect();
            settle(layer, &wished, &space, &mut centre);
        }
    }
    let left = (0..widths.len())
        .map(|n| centre[n] - widths[n] / 2.0)
        .fold(f64::INFINITY, f64::min);
    let boxes: Vec<Spot> = (0..widths.len())
        .map(|n| Spot {
            x: centre[n] - widths[n] / 2.0 - left + MARGIN,
            y: f64::from(layer_of[n]) * LAYER + MARGIN,
            width: widths[n],
        })
        .collect();
    Layout {
        width: boxes.iter().map(|spot| spot.x + spot.width).fold(0.0, f64::max) + MARGIN,
        height: layers.len() as f64 * LAYER + MARGIN,
        boxes,
        paths: Vec::new(),
    }
}

/// Places a layer so that the squares of the distances to the wished places are least. Less the room that the
/// boxes before it need, the place of each box must not be before that of the box before it; boxes for which it
/// would be share the mean of their wishes.
fn settle(layer: &[u32], wished: &[f64], space: &impl Fn(u32, u32) -> f64, centre: &mut [f64]) {
    let mut offsets = Vec::with_capacity(layer.len());
    let mut offset = 0.0;
    // Sum of wishes, number of boxes.
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for (k, &n) in layer.iter().enumerate() {
        if k > 0 {
            offset += space(layer[k - 1], n);
        }
        offsets.push(offset);
        let mut block = (wished[k] - offset, 1);
        while let Some(&(sum, count)) = blocks.last()
            && sum / count as f64 >= block.0 / block.1 as f64
        {
            blocks.pop();
            block = (block.0 + sum, block.1 + count);
        }
        blocks.push(block);
    }
    let places = blocks
        .into_iter()
        .flat_map(|(sum, count)| std::iter::repeat_n(sum / count as f64, count));
    for ((&n, offset), place) in layer.iter().zip(offsets).zip(places) {
        centre[n as usize] = place + offset;
    }
}

/// A smooth line from the lower side of the first box to the upper side of the last.
fn path(route: &[u32], boxes: &[Spot]) -> String {
    use std::fmt::Write as _;
    let middle = |n: u32| boxes[n as usize].x + boxes[n as usize].width / 2.0;
    let mut text = String::new();
    let (Some(&from), Some(&to)) = (route.first(), route.last()) else {
        return text;
    };
    let (mut x, mut y) = (middle(from), boxes[from as usize].y + BOX_HEIGHT);
    // Writing into a String cannot fail.
    let _ = write!(text, "M{x:.1},{y:.1}");
    for &n in &route[1..] {
        let (next_x, next_y) = (middle(n), boxes[n as usize].y);
        let bend = (next_y - y) / 2.0;
        let _ = write!(
            text,
            " C{x:.1},{:.1} {next_x:.1},{:.1} {next_x:.1},{next_y:.1}",
            y + bend,
            next_y - bend
        );
        (x, y) = (next_x, next_y);
        if n != to {
            y += BOX_HEIGHT;
            let _ = write!(text, " L{x:.1},{y:.1}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(pairs: &[(u32, u32)]) -> Vec<(u32, u32, u32)> {
        pairs.iter().map(|&(p, c)| (p, c, 1)).collect()
    }

    #[test]
    fn boxes_do_not_overlap() {
        let labels: Vec<String> = (0..40).map(|n| "x".repeat(n)).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let pairs: Vec<(u32, u32)> = (1..40)
            .map(|n| (n * 7 % n, n))
            .chain((3..40).map(|n| (n / 3, n)))
            .collect();
        let layout = place(&labels, &edges(&pairs));
        for (k, a) in layout.boxes.iter().enumerate() {
            for b in &layout.boxes[..k] {
                let apart = a.y != b.y || a.x + a.width <= b.x + 1e-6 || b.x + b.width <= a.x + 1e-6;
                assert!(apart, "{a:?} {b:?}");
            }
            assert!(a.x >= 0.0 && a.x + a.width <= layout.width && a.y + BOX_HEIGHT <= layout.height);
        }
        for &(p, c) in &pairs {
            assert!(layout.boxes[p as usize].y < layout.boxes[c as usize].y);
        }
    }

    #[test]
    fn a_parent_stands_in_the_middle() {
        let layout = place(&["a", "b", "c"], &edges(&[(0, 1), (0, 2)]));
        let middle = |n: usize| layout.boxes[n].x + layout.boxes[n].width / 2.0;
        assert!((middle(0) - (middle(1) + middle(2)) / 2.0).abs() < 1.0);
    }

    #[test]
    fn long_edges_pass_between_boxes() {
        let layout = place(&["a", "b", "c"], &edges(&[(0, 1), (1, 2), (0, 2)]));
        assert_eq!(layout.paths[2].matches('C').count(), 2);
        assert!(place(&[], &[]).boxes.is_empty());
    }
}
