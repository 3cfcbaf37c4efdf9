//! The report as an SVG: throughput above, latency percentiles below, one column for each row.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{SegmentedCoord, ValueFormatter};
use plotters::coord::types::RangedCoordusize;
use plotters::prelude::*;

use super::report::ReportRow;

const PANEL_HEIGHT: u32 = 360;
const INK: RGBColor = RGBColor(60, 60, 60);
const BAR: RGBColor = RGBColor(45, 110, 180);
const LINES: [(&str, RGBColor); 3] =
    [("p50", RGBColor(70, 150, 90)), ("p95", RGBColor(225, 150, 40)), ("p99", RGBColor(195, 60, 60))];

/// Writes the picture as SVG.
pub fn write(path: &Path, rows: &[ReportRow]) -> Result<()> {
    let width = (rows.len() as u32 * 110).clamp(640, 3_000);
    let (has_rate, has_latency) = panels(rows);
    let height = PANEL_HEIGHT * (u32::from(has_rate) + u32::from(has_latency)).max(1);
    let area = SVGBackend::new(path, (width, height)).into_drawing_area();
    let drawn = draw(&area, rows);
    drawn.and_then(|()| area.present().map_err(|e| e.to_string())).map_err(|e| anyhow!("cannot plot: {e}"))
}

/// Whether any row has a rate, and whether any has latencies.
fn panels(rows: &[ReportRow]) -> (bool, bool) {
    let has_rate = rows.iter().any(|row| row.messages_per_second.is_some());
    (has_rate, rows.iter().any(|row| row.latency_us.is_some()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw(area: &Area<'_>, rows: &[ReportRow]) -> Result<(), String> {
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    let labels: Vec<String> = rows.iter().map(ReportRow::label).collect();
    let (has_rate, has_latency) = panels(rows);
    let (above, below) = area.split_vertically(if has_rate { PANEL_HEIGHT } else { 0 });
    if has_rate {
        throughput(&above, rows, &labels).map_err(|e| e.to_string())?;
    }
    if has_latency {
        latency(&below, rows, &labels).map_err(|e| e.to_string())?;
    }
    Ok(())
}

type Drawn = Result<(), Box<dyn std::error::Error>>;
type Columns = SegmentedCoord<RangedCoordusize>;

/// One column for each row. (The end of a range of columns is part of it.)
fn columns(rows: &[ReportRow]) -> Columns {
    (0..rows.len().saturating_sub(1)).into_segmented()
}

fn throughput(area: &Area<'_>, rows: &[ReportRow], labels: &[String]) -> Drawn {
    let top = rows.iter().filter_map(|row| row.messages_per_second).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("Messages per second", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(columns(rows), 0.0..top * 1.1)?;
    mesh(&mut chart, labels)?;
    for (index, row) in rows.iter().enumerate() {
        let Some(rate) = row.messages_per_second else { continue };
        let corners = [(SegmentValue::Exact(index), 0.0), (SegmentValue::Exact(index + 1), rate)];
        let mut bar = Rectangle::new(corners, BAR.filled());
        bar.set_margin(0, 0, 12, 12);
        chart.draw_series([bar])?;
    }
    Ok(())
}

fn latency(area: &Area<'_>, rows: &[ReportRow], labels: &[String]) -> Drawn {
    let top = rows.iter().filter_map(|row| row.latency_us).map(|l| l.p99 / 1e3).fold(0.01, f64::max);
    let bottom = rows.iter().filter_map(|row| row.latency_us).map(|l| l.p50 / 1e3).fold(top, f64::min);
    let mut chart = ChartBuilder::on(area)
        .caption("Latency in milliseconds", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        .build_cartesian_2d(columns(rows), ((bottom * 0.8).max(0.001)..top * 1.3).log_scale())?;
    mesh(&mut chart, labels)?;
    for (which, (name, colour)) in LINES.into_iter().enumerate() {
        let points = rows.iter().enumerate().filter_map(|(index, row)| {
            let latency = row.latency_us?;
            let micros = [latency.p50, latency.p95, latency.p99][which];
            Some((SegmentValue::CenterOf(index), (micros / 1e3).max(0.001)))
        });
        let points: Vec<(SegmentValue<usize>, f64)> = points.collect();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled()));
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart.configure_series_labels().border_style(INK).background_style(WHITE.mix(0.8)).draw()?;
    Ok(())
}

fn mesh<Y>(chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<Columns, Y>>, labels: &[String]) -> Drawn
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let name = |column: &SegmentValue<usize>| match column {
        SegmentValue::CenterOf(index) => labels.get(*index).cloned().unwrap_or_default(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_max_light_lines(1)
        .y_label_formatter(&|y: &f64| if *y >= 10.0 { format!("{y:.0}") } else { format!("{y}") })
        .x_labels(labels.len())
        .x_label_formatter(&name)
        .x_label_style(("sans-serif", 10))
        .y_label_style(("sans-serif", 12))
        .axis_style(INK)
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::histogram::Latency;
    use super::*;

    #[test]
    fn every_row_has_a_bar_and_a_label() {
        let latency_us = Some(Latency { p50: 900.0, p95: 2_000.0, p99: 4_000.0, max: 9_000.0 });
        let row = |batch| ReportRow {
            scenario: "push",
            batch: Some(batch),
            messages_per_second: Some(batch as f64 * 1_000.0),
            latency_us,
            ..ReportRow::default()
        };
        let path = std::env::temp_dir().join(format!("plot-{:016x}.svg", baton_env::random_u64()));
        write(&path, &[row(1), row(10)]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(svg.contains("push b1 ") && svg.contains("push b10 "), "{svg}");
    }
}
