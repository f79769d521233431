package popgate.tools;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Runs many commands of mqadmin in one process, and tells of each what it printed.
 *
 * <p>{@code Tools 127.0.0.1:9876}; then a line for each command: its words in Base64, with spaces between them. A
 * first word that begins with "@" is none of mqadmin: see {@link Clients}; {@code @names} lists all that there are,
 * and {@code @until TEXT COMMAND …} ends a command that never ends once it has printed a text. The answer is one line:
 * how it went ("ended", "late"), milliseconds, what it printed in Base64.
 */
public final class Tools {
    private static final long LONGEST_MS = 100_000;
    /** How long a command waits for an answer; as shipped 3 to 5 s, which is little on a busy machine. */
    private static final int ANSWER_MS = 30_000;
    private static final long STEP_MS = 5;
    private static final PrintStream OUT = System.out;

    private Tools() {}

    public static void main(String[] arguments) throws Exception {
        Clients clients = new Clients(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        OUT.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> words = new ArrayList<>();
            for (String word : line.trim().split(" ")) {
                words.add(new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8));
            }
            answer(words, clients);
        }
        Runtime.getRuntime().halt(0); // the tools leave threads behind that would hold the process
    }

    private static void answer(List<String> words, Clients clients) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
        long began = System.nanoTime();
        String until = words.get(0).equals("@until") ? words.get(1) : null;
        List<String> command = until == null ? words : words.subList(2, words.size());
        Thread thread = new Thread(() -> perform(command, clients, stream), command.get(0));
        thread.setDaemon(true);
        System.setOut(stream);
        System.setErr(stream);
        thread.start();
        long end = began + LONGEST_MS * 1_000_000;
        while (thread.isAlive() && System.nanoTime() < end) {
            thread.join(STEP_MS);
            hurry(thread);
            waitLonger();
            if (until != null && printed.toString(StandardCharsets.UTF_8).contains(until)) {
                thread.interrupt(); // it waits for the next time, for ever
            }
        }
        System.setOut(OUT);
        String how = thread.isAlive() ? "late" : "ended";
        String told = Base64.getEncoder().encodeToString(printed.toByteArray());
        OUT.println(how + " " + (System.nanoTime() - began) / 1_000_000 + " " + told);
    }

    /** What shuts a client down waits for a thread of it that looks only every 3 seconds whether it is to end. */
    private static void hurry(Thread command) {
        for (StackTraceElement place : command.getStackTrace()) {
            if (place.getClassName().equals(ServiceThread.class.getName()) && place.getMethodName().equals("shutdown")) {
                Thread.getAllStackTraces().keySet().stream()
                        .filter(one -> one.getName().equals("NettyEventExecutor"))
                        .forEach(Thread::interrupt);
                return;
            }
        }
    }

    /** Commands make clients of their own, which cannot be told beforehand how long to wait. */
    private static void waitLonger() throws ReflectiveOperationException {
        for (MQClientInstance client : MQClientManager.getInstance().getFactoryTable().values()) {
            client.getClientConfig().setMqClientApiTimeout(ANSWER_MS);
            client.getMQAdminImpl().setTimeoutMillis(ANSWER_MS);
            for (Object admin : ((Map<?, ?>) hidden(client, "adminExtTable").get(client)).values()) {
                hidden(admin, "timeoutMillis").setLong(admin, ANSWER_MS);
            }
        }
    }

    private static Field hidden(Object of, String name) throws ReflectiveOperationException {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    private static void perform(List<String> words, Clients clients, PrintStream out) {
        try {
            if (words.get(0).equals("@names")) {
                Commands.names().forEach(out::println);
            } else if (words.get(0).startsWith("@")) {
                out.println(clients.perform(words));
            } else {
                Commands.forget(); // several of them work only once
                MQAdminStartup.main0(words.toArray(new String[0]), null);
            }
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace, true));
            out.println(trace);
        }
    }

    /** A subclass sees the list of commands. */
    private static final class Commands extends MQAdminStartup {
        static void forget() {
            SUB_COMMANDS.clear();
        }

        static List<String> names() {
            forget();
            initCommand();
            return SUB_COMMANDS.stream().map(SubCommand::commandName).distinct().sorted().toList();
        }
    }
}
