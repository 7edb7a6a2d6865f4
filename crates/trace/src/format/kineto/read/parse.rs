//! Parses the text of one event. No column is changed until the event is complete, so a broken
//! event leaves no partial row.

use super::event::{Id, Integer, KeptEvent, TextRange, Time};
use super::key::{Argument, KeyStep, ValueForm};
use super::layout::ValueLayout;
use super::lenient;
use super::number;
use super::scan::{self, Bracket, Scanned, Stop};

/// Selects the grammar for strings and bare words: JSON's, or one that accepts common faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseRule {
    Strict,
    Lenient,
}

/// Parses the event whose opening bracket is before `at`. Returns the position after its end.
pub fn event(
    text: &[u8],
    at: usize,
    layout: &mut ValueLayout,
    event: &mut KeptEvent,
    rule: ParseRule,
) -> Scanned<usize> {
    match rule {
        ParseRule::Strict => scan_by::<false>(text, at, layout, event),
        ParseRule::Lenient => scan_by::<true>(text, at, layout, event),
    }
}

fn scan_by<const LENIENT: bool>(
    text: &[u8],
    mut at: usize,
    layout: &mut ValueLayout,
    event: &mut KeptEvent,
) -> Scanned<usize> {
    event.clear();
    // `args` is the only nested object that is parsed, so one flag suffices for the nesting.
    let mut inside = false;
    let (mut place, mut value) = layout.open(text, at, event)?;
    loop {
        at = match layout.step(place) {
            KeyStep::Keep(argument) => keep::<LENIENT>(text, value, event, argument)?,
            KeyStep::Skip | KeyStep::SkipOnce => skip::<LENIENT>(text, value)?,
            KeyStep::Time => time::<LENIENT>(text, value, &mut event.time)?,
            KeyStep::Duration => time::<LENIENT>(text, value, &mut event.duration)?,
            KeyStep::Process => {
                id::<LENIENT>(text, value, &mut event.process, &mut event.repaired)?
            }
            KeyStep::Thread => id::<LENIENT>(text, value, &mut event.thread, &mut event.repaired)?,
            KeyStep::Id => id::<LENIENT>(text, value, &mut event.id, &mut event.repaired)?,
            KeyStep::Name => {
                text_into::<LENIENT>(text, value, &mut event.name, &mut event.repaired)?
            }
            KeyStep::Category => {
                text_into::<LENIENT>(text, value, &mut event.category, &mut event.repaired)?
            }
            KeyStep::Phase => {
                let mut phase = TextRange::default();
                let end = text_into::<LENIENT>(text, value, &mut phase, &mut event.repaired)?;
                event.phase = (phase.start > 0).then_some(phase);
                end
            }
            KeyStep::Arguments => {
                event.clear_arguments(value);
                inside = true;
                value
            }
            KeyStep::End if inside => {
                inside = false;
                value
            }
            KeyStep::End => return Ok(value),
        };
        (place, value) = layout.next(text, at, place)?;
    }
}

#[inline(always)]
fn skip<const LENIENT: bool>(text: &[u8], at: usize) -> Scanned<usize> {
    if LENIENT {
        return lenient::skip_value(text, scan::skip_blank(text, at), Bracket::Object);
    }
    match *text.get(at).ok_or(Stop::Short)? {
        b'"' => Ok(scan::string_end(text, at + 1)? + 1),
        b'0'..=b'9' => integer_end(text, at),
        _ => scan::skip_value(text, scan::skip_blank(text, at)),
    }
}

/// Returns the position after the number at `at`.
#[inline(always)]
fn integer_end(text: &[u8], at: usize) -> Scanned<usize> {
    let (_, _, end) = number::digits(text, at);
    match text.get(end).ok_or(Stop::Short)? {
        b',' | b'}' | b'\n' | b' ' => Ok(end),
        _ => scan::scalar_end(text, at),
    }
}

/// Stores the content of a string, or an empty range for any other value. Returns the position
/// after the value.
///
/// The result is written field by field, because returning a range and copying it stalls the
/// processor.
#[inline(always)]
fn text_into<const LENIENT: bool>(
    text: &[u8],
    at: usize,
    out: &mut TextRange,
    repaired: &mut u32,
) -> Scanned<usize> {
    if !LENIENT
        && text.get(at) == Some(&b'"')
        && let Some(end) = scan::plain_end(text, at + 1)
    {
        out.start = at + 1;
        out.end = end;
        out.plain = true;
        return Ok(end + 1);
    }
    let (content, end) = any_string::<LENIENT>(text, at, repaired)?;
    *out = content.unwrap_or_default();
    Ok(end)
}

/// Returns the content of a string, or `None` for any other value, and the position after the
/// value.
#[inline(always)]
fn string<const LENIENT: bool>(
    text: &[u8],
    at: usize,
    repaired: &mut u32,
) -> Scanned<(Option<TextRange>, usize)> {
    if !LENIENT
        && text.get(at) == Some(&b'"')
        && let Some(end) = scan::plain_end(text, at + 1)
    {
        return Ok((Some(TextRange { start: at + 1, end, plain: true }), end + 1));
    }
    any_string::<LENIENT>(text, at, repaired)
}

#[inline(never)]
fn any_string<const LENIENT: bool>(
    text: &[u8],
    at: usize,
    repaired: &mut u32,
) -> Scanned<(Option<TextRange>, usize)> {
    let (first, at) = scan::after_blank(text, at)?;
    if first != b'"' {
        return Ok((None, skip::<LENIENT>(text, at)?));
    }
    let start = at + 1;
    let end = if LENIENT {
        let end = lenient::string_end(text, start, Bracket::Object)?;
        *repaired += u32::from(scan::string_end(text, start) != Ok(end));
        end
    } else {
        scan::string_end(text, start)?
    };
    let plain = scan::is_plain(&text[start..end]) && !text[start..end].contains(&b'"');
    Ok((Some(TextRange { start, end, plain }), end + 1))
}

#[inline(always)]
fn time<const LENIENT: bool>(text: &[u8], at: usize, out: &mut Time) -> Scanned<usize> {
    if let Some((nanos, end)) = number::short_nanos(text, at) {
        *out = Time::Nanos(nanos);
        return Ok(end);
    }
    any_time::<LENIENT>(text, at, out)
}

fn any_time<const LENIENT: bool>(text: &[u8], at: usize, out: &mut Time) -> Scanned<usize> {
    let (first, at) = scan::after_blank(text, at)?;
    let end = skip::<LENIENT>(text, at)?;
    let token = if first == b'"' { &text[at + 1..end - 1] } else { &text[at..end] };
    *out = match str::from_utf8(token).ok().and_then(number::nanos) {
        Some(nanos) => Time::Nanos(nanos),
        None if token == b"null" => Time::Missing,
        None => Time::Bad,
    };
    Ok(end)
}

#[inline(always)]
fn id<const LENIENT: bool>(
    text: &[u8],
    at: usize,
    out: &mut Id,
    repaired: &mut u32,
) -> Scanned<usize> {
    // A number of up to 18 digits always fits an `i64`, and only longer ids need a check.
    let (value, count, end) = number::digits(text, at);
    if (1..=18).contains(&count) && matches!(text.get(end), Some(b',' | b'}' | b'\n' | b' ')) {
        *out = Id::Number(value as i64);
        return Ok(end);
    }
    any_id::<LENIENT>(text, at, out, repaired)
}

fn any_id<const LENIENT: bool>(
    text: &[u8],
    at: usize,
    out: &mut Id,
    repaired: &mut u32,
) -> Scanned<usize> {
    let (first, at) = scan::after_blank(text, at)?;
    if first == b'"' {
        let (content, end) = string::<LENIENT>(text, at, repaired)?;
        *out = content.map_or(Id::Missing, Id::Text);
        return Ok(end);
    }
    let end = skip::<LENIENT>(text, at)?;
    let number = matches!(first, b'0'..=b'9' | b'-');
    let integer = str::from_utf8(&text[at..end]).ok().and_then(|token| token.parse().ok());
    *out = match integer {
        Some(integer) => Id::Number(integer),
        None if number => Id::Other(TextRange { start: at, end, plain: true }),
        None => Id::Missing,
    };
    Ok(end)
}

#[inline(always)]
fn keep<const LENIENT: bool>(
    text: &[u8],
    at: usize,
    event: &mut KeptEvent,
    argument: Argument,
) -> Scanned<usize> {
    event.note(argument);
    match argument.form() {
        ValueForm::Integer => {
            let (value, count, end) = number::digits(text, at);
            if count > 0 && matches!(text.get(end), Some(b',' | b'}' | b'\n' | b' ')) {
                event.set_integer(argument, Integer::Unsigned(value));
                return Ok(end);
            }
            any_integer::<LENIENT>(text, at, event, argument)
        }
        ValueForm::Text => {
            let (out, repaired) = event.content_mut(argument);
            text_into::<LENIENT>(text, at, out, repaired)
        }
        ValueForm::Float => float::<LENIENT>(text, at, event, argument),
        ValueForm::Triple => triple::<LENIENT>(text, at, event, argument),
        ValueForm::Flag => {
            let end = skip::<LENIENT>(text, at)?;
            if argument == Argument::Finished {
                event.unfinished = text[at..end].trim_ascii() == b"false";
            }
            Ok(end)
        }
    }
}

fn any_integer<const LENIENT: bool>(
    text: &[u8],
    at: usize,
    event: &mut KeptEvent,
    argument: Argument,
) -> Scanned<usize> {
    let (first, at) = scan::after_blank(text, at)?;
    let (token, end) = if first == b'"' {
        let (content, end) = string::<LENIENT>(text, at, &mut event.repaired)?;
        (content.unwrap_or_default().slice(text), end)
    } else {
        let end = skip::<LENIENT>(text, at)?;
        (&text[at..end], end)
    };
    let parsed = str::from_utf8(token).ok().and_then(|token| token.trim().parse::<i128>().ok());
    let magnitude = parsed.and_then(|value| u64::try_from(value.unsigned_abs()).ok());
    // Addresses and handles are texts such as `0x55d0`. No column stores addresses, so they do not
    // count as faulty numbers.
    let is_missing = token == b"null" || token.is_empty() || token.starts_with(b"0x");
    let value = match (parsed, magnitude) {
        (Some(..0), Some(magnitude)) => Integer::Negative(magnitude),
        (_, Some(magnitude)) => Integer::Unsigned(magnitude),
        _ if is_missing => Integer::Missing,
        _ => Integer::Bad,
    };
    event.set_integer(argument, value);
    Ok(end)
}

fn float<const LENIENT: bool>(
    text: &[u8],
    at: usize,
    event: &mut KeptEvent,
    argument: Argument,
) -> Scanned<usize> {
    let (first, at) = scan::after_blank(text, at)?;
    let (content, end) = if first == b'"' {
        string::<LENIENT>(text, at, &mut event.repaired)?
    } else if let Some((_, end)) = number::short_float(text, at)
        && matches!(text.get(end), Some(b',' | b'}' | b'\n' | b' '))
    {
        (Some(TextRange { start: at, end, plain: true }), end)
    } else {
        let end = skip::<LENIENT>(text, at)?;
        (Some(TextRange { start: at, end, plain: true }), end)
    };
    *event.content_mut(argument).0 = content.unwrap_or_default();
    Ok(end)
}

fn triple<const LENIENT: bool>(
    text: &[u8],
    at: usize,
    event: &mut KeptEvent,
    argument: Argument,
) -> Scanned<usize> {
    if let Some((triple, end)) = number::short_triple(text, at) {
        event.set_triple(argument, triple.map(Some));
        return Ok(end);
    }
    let (first, start) = scan::after_blank(text, at)?;
    let end = skip::<LENIENT>(text, start)?;
    let mut triple = [None; 3];
    if first == b'[' {
        let inner = str::from_utf8(&text[start + 1..end - 1]).unwrap_or_default();
        triple = [Some(0); 3];
        for (out, part) in triple.iter_mut().zip(inner.split(',')) {
            *out = part.trim().parse().ok();
        }
    } else if text[start..end].trim_ascii() == b"null" {
        triple = [Some(0); 3];
    }
    event.set_triple(argument, triple);
    Ok(end)
}
