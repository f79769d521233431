package popgate.classic;

import java.util.Collection;
import java.util.Iterator;
import java.util.Map;

/** Writes JSON on one line: maps, collections, strings, numbers, booleans, null. */
final class Json {
    private Json() {}

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map<?, ?> map) {
            out.append('{');
            for (Iterator<? extends Map.Entry<?, ?>> i = map.entrySet().iterator(); i.hasNext(); ) {
                Map.Entry<?, ?> entry = i.next();
                quote(entry.getKey().toString(), out);
                out.append(": ");
                write(entry.getValue(), out);
                if (i.hasNext()) {
                    out.append(", ");
                }
            }
            out.append('}');
        } else if (value instanceof Collection<?> items) {
            out.append('[');
            for (Iterator<?> i = items.iterator(); i.hasNext(); ) {
                write(i.next(), out);
                if (i.hasNext()) {
                    out.append(", ");
                }
            }
            out.append(']');
        } else {
            quote(value.toString(), out);
        }
    }

    private static void quote(String text, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
